// The identity's roles on the App Service Plan it scales. Deployed to the resource group of that plan.

@description('Name of the App Service Plan.')
param planName string

@description('Object id of the identity.')
param principalId string

var webPlanContributor = '2cc479cb-7b4d-49a8-b449-8c00fd0f0a4b'
var monitoringReader = '43d0d8ad-25c7-4714-9337-8ba259a9fe05'

resource plan 'Microsoft.Web/serverfarms@2024-04-01' existing = {
  name: planName
}

resource onPlan 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(plan.id, principalId, webPlanContributor)
  scope: plan
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', webPlanContributor)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: read the plan, its SKUs and operations; set its number of instances'
  }
}

// Azure Monitor autoscale settings are listed by resource group, so this role cannot be on the plan alone.
resource onGroup 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(resourceGroup().id, principalId, monitoringReader)
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringReader)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: see whether an Azure Monitor autoscale setting holds the plan'
  }
}
