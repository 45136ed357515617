// The function app and its plan, with every app setting. What the settings of the runtime say elsewhere
// (FUNCTIONS_WORKER_RUNTIME, FUNCTIONS_EXTENSION_VERSION, WEBSITE_RUN_FROM_PACKAGE, ...) Flex Consumption takes
// from functionAppConfig; it refuses the settings, and what siteConfig says of them elsewhere (linuxFxVersion, alwaysOn,
// ftpsState, ...), with error 51021. So each kind of plan has a table of its own below.

@description('Name of the function app.')
param name string

@description('Name of its plan.')
param planName string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

@description('Kind of the plan: FlexConsumption, ElasticPremium or Dedicated.')
param hostingPlan string

@description('Size of an instance of the plan; empty for the default of its kind.')
param planSku string

@description('Elastic Premium: instances that always run. Dedicated: instances.')
param planInstances int

@description('Whether the plan exists, and somebody else sets its instances: then it is left as it is.')
param leavesPlan bool

@description('Elastic Premium: most instances.')
param elasticInstanceLimit int

@description('Id of the subnet that the app calls from; empty for the internet.')
param subnetId string

@description('Whether the app answers calls from the internet.')
param openToInternet bool

@description('Python of the app, such as 3.11.')
param pythonVersion string

@description('Name of the storage account.')
param storageAccountName string

@description('Name of the blob container for the deployed package.')
param deploymentContainerName string

@description('Name of the Application Insights component.')
param applicationInsightsName string

@description('Resource id of the user-assigned identity.')
param identityId string

@description('Client id of the user-assigned identity.')
param identityClientId string

@description('Object id of the user-assigned identity.')
param identityPrincipalId string

@description('When backlogs are read: NCRONTAB with seconds, in UTC.')
param collectSchedule string

@description('When requested is compared with reached: NCRONTAB with seconds, in UTC.')
param verifySchedule string

@description('How long decisions are kept, such as 30d.')
param scalingLogRetention string

@description('Names of the connections that the identity signs in to.')
param connections array

@description('Further app settings by name, those of the consumer among them; they win over those below.')
param furtherSettings object

@description('How the app consumes: off, slices or trigger.')
param consumerHosting string

@description('Memory of an instance in MB.')
param instanceMemoryMB int

@description('Most instances the platform may run of each function.')
param maximumInstanceCount int

@description('Keep one instance warm of each function that a queue or the event hub starts: no cold start between sample, decision and action.')
param alwaysReady bool

@description('Client id of the app registration that people sign in with; empty where function keys open the app.')
param signInClientId string

@description('Id of the tenant of that registration.')
param signInTenantId string

@description('Client ids of the programs whose tokens for that registration are accepted, besides its own.')
param signInClientApplications array

// Flex Consumption scales each of these on its own, down to none.
var queueFunctions = [
  {
    name: 'function:scaling_logic'
    instanceCount: 1
  }
  {
    name: 'function:scaler'
    instanceCount: 1
  }
]
var eventFunctions = [
  {
    name: 'function:consume_events'
    instanceCount: 1
  }
]
var warmFunctions = consumerHosting == 'trigger' ? union(queueFunctions, eventFunctions) : queueFunctions

var settings = {
  // The host's storage, by identity. Addresses rather than __accountName, which means the public cloud and
  // which the queue binding would prefer to __queueServiceUri.
  AzureWebJobsStorage__blobServiceUri: storage.properties.primaryEndpoints.blob
  AzureWebJobsStorage__queueServiceUri: storage.properties.primaryEndpoints.queue
  AzureWebJobsStorage__tableServiceUri: storage.properties.primaryEndpoints.table
  AzureWebJobsStorage__credential: 'managedidentity'
  AzureWebJobsStorage__clientId: identityClientId

  // Telemetry, by identity.
  APPLICATIONINSIGHTS_CONNECTION_STRING: applicationInsights.properties.ConnectionString
  APPLICATIONINSIGHTS_AUTHENTICATION_STRING: 'ClientId=${identityClientId};Authorization=AAD'

  // Resource Manager, by identity. AZURE_CLIENT_ID is what the default credential chain falls back to.
  AZURE_CLIENT_ID: identityClientId
  AZURE_RESOURCE_MANAGER_ENDPOINT: environment().resourceManager
  AzureResourceManager__credential: 'managedidentity'
  AzureResourceManager__clientId: identityClientId

  // Tidemark.
  COLLECT_SCHEDULE: collectSchedule
  VERIFY_SCHEDULE: verifySchedule
  SCALING_LOG_RETENTION: scalingLogRetention
}

// Signing in opens page and API, by the roles of the registration. The app asks the host for no keys then.
var signInSettings = empty(signInClientId) ? {} : {
  TIDEMARK_SIGN_IN: 'true'
}

// Every connection is by the one identity.
var credentials = toObject(connections, name => '${name}__credential', name => 'managedidentity')
var clientIds = toObject(connections, name => '${name}__clientId', name => identityClientId)

var runtime = {
  FUNCTIONS_EXTENSION_VERSION: '~4'
  FUNCTIONS_WORKER_RUNTIME: 'python'
}
var settingsOfPlan = {
  FlexConsumption: {}
  // Elsewhere the platform would keep the package in a file share, which is opened by a key. So it lies in the container
  // that Flex Consumption has it in, is read by the identity, and has to hold its Python packages (docs/deploying/plan-and-network.md).
  ElasticPremium: union(runtime, {
    WEBSITE_RUN_FROM_PACKAGE: '${storage.properties.primaryEndpoints.blob}${deploymentContainerName}/tidemark.zip'
    WEBSITE_RUN_FROM_PACKAGE_BLOB_MI_RESOURCE_ID: identityId
  })
  Dedicated: union(runtime, {
    ENABLE_ORYX_BUILD: 'true'
    SCM_DO_BUILD_DURING_DEPLOYMENT: 'true'
  })
}

var plans = {
  FlexConsumption: {
    kind: 'functionapp'
    sku: {
      name: 'FC1'
      tier: 'FlexConsumption'
    }
    properties: {
      reserved: true
    }
  }
  ElasticPremium: {
    kind: 'elastic'
    sku: {
      name: empty(planSku) ? 'EP1' : planSku
      tier: 'ElasticPremium'
      capacity: planInstances
    }
    properties: {
      reserved: true
      maximumElasticWorkerCount: max(elasticInstanceLimit, planInstances)
    }
  }
  Dedicated: {
    kind: 'linux'
    sku: {
      name: empty(planSku) ? 'P0v3' : planSku
      capacity: planInstances
    }
    properties: {
      reserved: true
    }
  }
}

var safety = {
  minTlsVersion: '1.2'
  scmMinTlsVersion: '1.2'
  http20Enabled: true
  cors: {
    allowedOrigins: [
      'https://portal.azure.com' // "Test/Run" in the portal calls the functions from the browser
    ]
  }
}
var elsewhere = {
  linuxFxVersion: 'Python|${pythonVersion}'
  ftpsState: 'Disabled'
  vnetRouteAllEnabled: !empty(subnetId) // all calls through the network; Flex Consumption does so anyway
}
var siteConfigs = {
  FlexConsumption: {}
  ElasticPremium: union(elsewhere, {
    minimumElasticInstanceCount: planInstances
    functionAppScaleLimit: max(elasticInstanceLimit, planInstances)
    functionsRuntimeScaleMonitoringEnabled: !empty(subnetId) // else nobody sees the queues of a closed account grow
  })
  Dedicated: union(elsewhere, {
    alwaysOn: true // else timers stop when nobody calls
  })
}

var flexConfig = {
  functionAppConfig: {
    deployment: {
      storage: {
        type: 'blobContainer'
        value: '${storage.properties.primaryEndpoints.blob}${deploymentContainerName}'
        authentication: {
          type: 'UserAssignedIdentity'
          userAssignedIdentityResourceId: identityId
        }
      }
    }
    scaleAndConcurrency: {
      instanceMemoryMB: instanceMemoryMB
      maximumInstanceCount: maximumInstanceCount
      alwaysReady: alwaysReady ? warmFunctions : []
    }
    runtime: {
      name: 'python'
      version: pythonVersion
    }
  }
}

resource storage 'Microsoft.Storage/storageAccounts@2023-05-01' existing = {
  name: storageAccountName
}

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource runningPlan 'Microsoft.Web/serverfarms@2024-04-01' existing = {
  name: planName
}

resource plan 'Microsoft.Web/serverfarms@2024-04-01' = if (!leavesPlan) {
  name: planName
  location: location
  tags: tags
  kind: plans[hostingPlan].kind
  sku: plans[hostingPlan].sku
  properties: plans[hostingPlan].properties
}

resource site 'Microsoft.Web/sites@2024-04-01' = {
  name: name
  location: location
  kind: 'functionapp,linux'
  tags: union(tags, {
    'azd-service-name': 'tidemark'
  })
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: union({
    serverFarmId: leavesPlan ? runningPlan.id : plan.id
    httpsOnly: true
    publicNetworkAccess: openToInternet ? 'Enabled' : 'Disabled'
    keyVaultReferenceIdentity: identityId
    siteConfig: union(safety, siteConfigs[hostingPlan])
  }, hostingPlan == 'FlexConsumption' ? flexConfig : {}, empty(subnetId) ? {} : { virtualNetworkSubnetId: subnetId })
}

// Publishing takes a token of Microsoft Entra ID; the publishing user name and password are refused. These and the app
// settings write the site, which answers 409 to whoever comes second: so one after the other.
resource noFtpPassword 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2024-04-01' = {
  parent: site
  name: 'ftp'
  properties: {
    allow: false
  }
}

resource noScmPassword 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2024-04-01' = {
  parent: site
  name: 'scm'
  properties: {
    allow: false
  }
  dependsOn: [
    noFtpPassword
  ]
}

resource appSettings 'Microsoft.Web/sites/config@2024-04-01' = {
  parent: site
  name: 'appsettings'
  properties: union(settings, settingsOfPlan[hostingPlan], credentials, clientIds, signInSettings, furtherSettings)
  dependsOn: [
    noScmPassword
  ]
}

// The platform signs people in, checks tokens, and hands the claims to the app in a header that nobody else can set. It
// lets everybody through, and the app refuses: it knows who may what, says so in words, and what the host guards by keys
// (/admin: runs from the portal) stays reachable. Only id tokens are asked for, so the registration needs no secret.
resource signIn 'Microsoft.Web/sites/config@2024-04-01' = if (!empty(signInClientId)) {
  parent: site
  name: 'authsettingsV2'
  properties: {
    platform: {
      enabled: true
      runtimeVersion: '~1'
    }
    globalValidation: {
      requireAuthentication: false
      unauthenticatedClientAction: 'AllowAnonymous'
    }
    httpSettings: {
      requireHttps: true
    }
    identityProviders: {
      azureActiveDirectory: {
        enabled: true
        registration: {
          clientId: signInClientId
          openIdIssuer: '${environment().authentication.loginEndpoint}${signInTenantId}/v2.0'
        }
        validation: {
          allowedAudiences: [
            signInClientId
            'api://${signInClientId}'
          ]
          defaultAuthorizationPolicy: {
            allowedApplications: union([signInClientId], signInClientApplications)
          }
        }
      }
    }
    login: {
      tokenStore: {
        enabled: false // nobody here calls anything in a user's name
      }
    }
  }
  dependsOn: [
    appSettings
  ]
}

// The doctor compares the platform's sign-in with what the app goes by. App settings and keys take another right.
var reader = 'acdd72a7-3385-48ef-bd42-f606fba81ae7'

resource onSite 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(site.id, identityId, reader)
  scope: site
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', reader)
    principalId: identityPrincipalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: read how people sign in to the app itself'
  }
}

@description('Name of the function app.')
output name string = site.name

@description('Address of the app.')
output baseUrl string = 'https://${site.properties.defaultHostName}'
