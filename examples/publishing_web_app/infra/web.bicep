// The web app on a plan of one instance, which may send to the hub.

@description('Name of the app, which is part of its address.')
param name string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

@description('Full resource id of the event hub.')
param hubId string

@description('Full resource id of the identity of the app.')
param identityId string

@description('Its client id.')
param clientId string

@description('Its object id.')
param principalId string

@description('Where orders and the state of the publisher are kept.')
param databaseUrl string

var eventHubsDataSender = '2b629674-e913-4c01-ae53-ef4638d8f975'

resource plan 'Microsoft.Web/serverfarms@2024-04-01' = {
  name: 'plan-${name}'
  location: location
  tags: tags
  kind: 'linux'
  sku: {
    name: 'B1'
    capacity: 1
  }
  properties: {
    reserved: true
  }
}

resource site 'Microsoft.Web/sites@2024-04-01' = {
  name: name
  location: location
  tags: union(tags, {
    'azd-service-name': 'web'
  })
  kind: 'app,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    siteConfig: {
      linuxFxVersion: 'PYTHON|3.11'
      appCommandLine: 'python app.py'
      alwaysOn: true
      minTlsVersion: '1.2'
      ftpsState: 'Disabled'
    }
  }
}

resource settings 'Microsoft.Web/sites/config@2024-04-01' = {
  parent: site
  name: 'appsettings'
  properties: {
    SCM_DO_BUILD_DURING_DEPLOYMENT: 'true'
    WEBSITE_DISABLE_OVERLAPPED_RECYCLING: '1' // one instance at a time, deployments too
    AZURE_CLIENT_ID: clientId
    EventHubConnection__fullyQualifiedNamespace: '${split(hubId, '/')[8]}.servicebus.windows.net'
    DATABASE_URL: databaseUrl
  }
}

resource eventHubs 'Microsoft.EventHub/namespaces@2024-01-01' existing = {
  name: split(hubId, '/')[8]
}

resource hub 'Microsoft.EventHub/namespaces/eventhubs@2024-01-01' existing = {
  parent: eventHubs
  name: split(hubId, '/')[10]
}

resource sender 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(hub.id, principalId, eventHubsDataSender)
  scope: hub
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', eventHubsDataSender)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'The web shop: send events'
  }
}

@description('Where orders are posted to.')
output url string = 'https://${site.properties.defaultHostName}/orders'
